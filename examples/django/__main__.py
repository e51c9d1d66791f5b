"""Orders in Django: sent after the commit, looked at in the admin, sent again there."""

from __future__ import annotations

import os
import re

from examples.fleet import PATIENCE_S, place, worker

PROJECT = "examples.django.shop"


def main() -> None:
    with place() as folder:
        os.environ |= {
            "APP_DATABASE": f"{folder}/shop.sqlite3",
            "DJANGO_SETTINGS_MODULE": f"{PROJECT}.settings",
        }
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", run_syncdb=True, verbosity=0)
        call_command("cystore_create")
        call_command("check")
        with worker(PROJECT, folder):
            _orders()
        call_command("cystore_report", top=3)


def _orders() -> None:
    from django.contrib.auth.models import User
    from django.db import connection, transaction
    from django.test import Client

    from cystore.contrib.django.sending import send_on_commit
    from examples.django.shop.models import Order
    from examples.django.shop.tasks import charge

    def order(item, card):
        with transaction.atomic():
            row = Order.objects.create(item=item)
            result = send_on_commit(charge.s(row.pk, card=card))
            row.task_id = result.id
            row.save()
            if item == "nothing":
                transaction.set_rollback(True)
        return result

    print(order("tea", "1111").get(timeout=PATIENCE_S))
    declined = order("cup", "4000")
    print(repr(declined.get(timeout=PATIENCE_S, propagate=False)))
    order("nothing", "1111")

    User.objects.create_superuser("ann", password="an example")
    browser = Client()
    browser.login(username="ann", password="an example")
    page = browser.get("/admin/cystore/task/").content.decode()
    print("tasks in the admin:", len(re.findall(r'<th scope="row">', page)))
    task = f"/admin/cystore/task/{declined.id}/change/"
    answer = browser.post(task, {"action": "rerun"}, follow=True)
    print("the admin says:", *re.findall(r'<li class="\w+">(.*?)</li>', answer.content.decode()))
    print("orders that are paid:", Order.objects.filter(is_paid=True).count())
    connection.close()


if __name__ == "__main__":
    main()
