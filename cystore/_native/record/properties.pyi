from cystore._native.record.message import RESERVED_PROPERTIES as RESERVED_PROPERTIES
