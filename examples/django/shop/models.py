"""An order, with the id of the task that charges it."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order of the shop."""

    item = models.CharField(max_length=100)
    task_id = models.CharField(max_length=255)
    is_paid = models.BooleanField(default=False)

    class Meta:
        app_label = "shop"

    def __str__(self) -> str:
        return self.item
