"""cystore in a Django project: an admin section of tasks, commands, checks, sending after a commit, and the move from
django-celery-results and django-celery-beat.

    INSTALLED_APPS = [..., "cystore.contrib.django"]
    CELERY_RESULT_BACKEND = "cystore:////var/lib/shop/store"

Needs cystore[django]. May import `cystore.cli` and what is below it: docs/architecture.md.
"""
