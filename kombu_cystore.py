"""Makes `cystore://` known to kombu as a broker. kombu looks for modules of other packages in one place only, its entry
points of serializers; so this one also is a serializer of JSON, which nothing uses."""

from kombu.transport import TRANSPORT_ALIASES
from kombu.utils.json import dumps, loads

TRANSPORT_ALIASES.setdefault("cystore", "cystore.celery.transport:Transport")

SERIALIZER = (dumps, loads, "application/x-cystore-json", "utf-8")
