"""The project's package. It imports the Celery app, so that every process of the project has it."""

from examples.django.shop.celery import app as celery_app

__all__ = ("celery_app",)
