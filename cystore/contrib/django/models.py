"""A task as Django's admin and its permissions know it. The log has the tasks: there is no table."""

from __future__ import annotations

from typing import Any

from django.db import models


class _NoRows(models.Manager):
    """Never asks the database, for `dumpdata` and whoever else asks every model."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class Task(models.Model):
    """Gives names to the permissions, and to the addresses in the admin."""

    id = models.CharField(primary_key=True, max_length=255)

    objects = _NoRows()

    class Meta:
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = (
            ("rerun_task", "Can send a task again"),
            ("revoke_task", "Can revoke or cancel a task"),
        )
        verbose_name = "task"

    def __str__(self) -> str:
        return str(self.id)
