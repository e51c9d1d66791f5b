"""The queues of a broker in a store, seen from outside: what they hold, and their way into another queue or broker.

``python -m cystore.celery.move STORE --to redis://host`` drains a store's queues into another broker, when one host is
too small.

May import `cystore.celery.transport` and what is below it: docs/architecture.md.
"""

from cystore.celery.move.carry import Carried, carry, drain
from cystore.celery.move.queue_look import BrokerQueue, Holder, listed, peek

__all__ = ["BrokerQueue", "Carried", "Holder", "carry", "drain", "listed", "peek"]
