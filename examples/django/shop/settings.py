"""Settings of a small shop. What cystore needs are two lines: the app, and the result backend."""

from __future__ import annotations

import os

SECRET_KEY = "an example, served to nobody"
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]
DEBUG = True
ROOT_URLCONF = "examples.django.shop.urls"
USE_TZ = True
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("APP_DATABASE", "/tmp/shop.sqlite3"),
        "OPTIONS": {"timeout": 60},
    }
}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "cystore.contrib.django",
    "examples.django.shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

CELERY_BROKER_URL = os.environ.get("APP_BROKER", "redis://localhost:6379/0")
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_RESULT_BACKEND = f"cystore://{os.environ.get('APP_STORE', '/tmp/cystore-shop')}"
CELERY_CYSTORE_LIFECYCLE_PAYLOAD = "message"  # so that the admin can send a task again
