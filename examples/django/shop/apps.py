"""The shop as an app of Django."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """Gives the app a short label."""

    name = "examples.django.shop"
    label = "shop"
