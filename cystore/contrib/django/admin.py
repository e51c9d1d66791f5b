"""The admin's section of tasks, read from the log. It shows what `cystore.web` shows, page by page; a permission each
lets a user send a task again, or stop it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from celery.exceptions import ImproperlyConfigured
from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from kombu.exceptions import OperationalError

from cystore import StoreError
from cystore.celery.lifecycle import task_lives
from cystore.contrib.django import project
from cystore.contrib.django.models import Task
from cystore.operate.command import moment_of
from cystore.operate.output import one_line
from cystore.web.answers import actions, task_pages
from cystore.web.answers.task_pages import Asked

ROWS = 50
STATES = ("SUCCESS", "FAILURE", "RETRY", "STARTED", "RECEIVED", "PENDING", "REVOKED")
SINCE = (("1h", "an hour"), ("1d", "a day"), ("7d", "7 days"), ("30d", "30 days"))
WORDS = ("name", "state", "worker", "since", "q")  # of an address
CHARS_MOST = 1000
PERMISSION = {
    actions.RERUN: "rerun",
    actions.REVOKE: "revoke",
    actions.CANCEL: "revoke",
    actions.FIRE: "rerun",
}
LABEL = {
    actions.RERUN: "Send again",
    actions.REVOKE: "Revoke",
    actions.CANCEL: "Revoke and end",
    actions.FIRE: "Make due now",
}
UNAVAILABLE = 503


@admin.register(Task)
class TaskAdmin(admin.ModelAdmin):
    """Lists tasks, newest first, and shows one with its events. Nothing can be changed but by an action."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Tasks come from Celery."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """A log is not changed."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nor are parts of it removed."""
        return False

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Task | None:
        """A task by its id, for Django's own pages, as that of its history."""
        try:
            known = task_lives.entries_of(project.source(), unquote(object_id))
        except (StoreError, ImproperlyConfigured):
            return None
        return Task(id=unquote(object_id)) if known else None

    # ------------------------------------------------------------------------------------------ the list

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """A page of tasks that meet the conditions of the address."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        given = {word: request.GET.get(word, "").strip()[:CHARS_MOST] for word in WORDS}
        rows: list[dict[str, Any]] = []
        following: str | None = None
        trouble, status = "", 200
        try:
            asked = Asked(
                given["name"] or None, given["state"] or None, given["worker"] or None,
                moment_of(given["since"]) if given["since"] else 0, None, given["q"] or None,
            )  # fmt: skip
            rows, following = task_pages.page_of(
                project.source(), asked, ROWS, request.GET.get("after") or None, project.texts()
            )
        except ValueError as error:
            trouble, status = str(error), 400
        except (StoreError, ImproperlyConfigured) as error:
            trouble, status = one_line(str(error)), UNAVAILABLE
        kept = {word: text for word, text in given.items() if text}
        context = {
            **self.admin_site.each_context(request),
            **(extra_context or {}),
            "title": "Tasks",
            "opts": self.opts,
            "rows": [{**row, "url": self._address(row["id"])} for row in rows],
            "given": given,
            "hidden": [(word, text) for word, text in kept.items() if word != "q"],
            "trouble": trouble,
            "older": f"?{urlencode({**kept, 'after': following})}" if following else "",
            "newest": f"?{urlencode(kept)}" if request.GET.get("after") else "",
            "filters": (
                ("state", _choices(kept, "state", [(one, one) for one in STATES])),
                ("since", _choices(kept, "since", list(SINCE))),
            ),
            "chosen": [
                (word, kept[word], f"?{urlencode({key: text for key, text in kept.items() if key != word})}")
                for word in ("name", "worker")
                if word in kept
            ],
        }
        return TemplateResponse(request, "admin/cystore/task/list.html", context, status=status)

    # ------------------------------------------------------------------------------------------ one task

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """One task: GET shows it, POST acts on it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        task_id = unquote(object_id)
        if request.method == "POST":
            return self._act(request, task_id)
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        try:
            found = task_pages.task_of(project.source(), task_id, project.texts())
        except (StoreError, ImproperlyConfigured) as error:
            messages.error(request, one_line(str(error)))
            return HttpResponseRedirect(reverse("admin:index", current_app=self.admin_site.name))
        if found is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        events = [
            (
                one["time"],
                one["event"],
                [item for item in one.items() if item[0] not in ("time", "kind", "event")],
            )
            for one in found.pop("events")
        ]
        possible = found.pop("actions")
        long = ("args", "kwargs", "result", "error", "traceback")
        context = {
            **self.admin_site.each_context(request),
            **(extra_context or {}),
            "title": f"Task {task_id}",
            "opts": self.opts,
            "task": found,
            "fields": [item for item in found.items() if item[0] not in long and item[1] is not None],
            "texts": [(name, found[name]) for name in long if found[name] is not None],
            "events": events,
            "root_url": self._address(found["root_id"]) if found["root_id"] not in (None, task_id) else "",
            "parent_url": self._address(found["parent_id"]) if found["parent_id"] else "",
            "history_url": self._address(task_id, "history"),
            "actions": [(one, LABEL[one]) for one in possible if self._may(request, one)],
        }
        return TemplateResponse(request, "admin/cystore/task/one.html", context)

    def _may(self, request: HttpRequest, action: str) -> bool:
        """Whether the user has the permission of an action."""
        allowed: bool = request.user.has_perm(f"{self.opts.app_label}.{PERMISSION[action]}_task")
        return allowed

    def _act(self, request: HttpRequest, task_id: str) -> HttpResponse:
        action = request.POST.get("action", "")
        if action not in PERMISSION or not self._may(request, action):
            raise PermissionDenied
        address = self._address(task_id)
        try:
            source = project.source()
            life = task_lives.life_of(source, task_id, project.texts().is_valid)
            if life is None:
                return self._get_obj_does_not_exist_redirect(request, self.opts, quote(task_id))
            facts = actions.act(project.celery_app(), source, life, task_id, action)
        except (actions.ActionError, StoreError, ImproperlyConfigured) as error:
            messages.error(request, one_line(str(error)))
        except OperationalError as error:
            messages.error(request, f"The broker cannot be reached, nothing was sent: {error}")
        else:
            new_id = facts.get("new_id")
            told = "done" if action == actions.FIRE else "every worker was told"
            done = f"Sent again as {new_id}." if new_id else f"{LABEL[action]}: {told}."
            self.log_change(request, Task(id=task_id), done)
            messages.success(request, " ".join((done, *facts.get("notes", ()))))
        return HttpResponseRedirect(address)

    def _address(self, task_id: str, page: str = "change") -> str:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{page}"
        return reverse(name, args=(quote(task_id),), current_app=self.admin_site.name)


def _choices(kept: dict[str, str], word: str, values: list[tuple[str, str]]) -> list[tuple[str, str, bool]]:
    """The links of a filter: text, address, and whether it is chosen."""
    rest = {key: text for key, text in kept.items() if key != word}
    return [
        ("All", f"?{urlencode(rest)}", word not in kept),
        *(
            (shown, f"?{urlencode({**rest, word: value})}", kept.get(word) == value)
            for value, shown in values
        ),
    ]
