"""The settings of the example's project, with the apps that people come from, and what a test adds."""

from __future__ import annotations

import json
import os

from examples.django.shop import settings as the_shops

globals().update({name: value for name, value in vars(the_shops).items() if name.isupper()})
INSTALLED_APPS = [*the_shops.INSTALLED_APPS, "django_celery_results", "django_celery_beat"]
CELERY_BROKER_URL = "memory://"
globals().update(json.loads(os.environ.get("MORE_SETTINGS", "{}")))
