"""The landing zone: batches as files that Spark and others read, each row once. Needs pyarrow, but not pyspark.

Interface for readers:

* `Tail` follows the manifests of all writers; `Tail.poll` gives new `Entry` objects, one for each landed batch.
* `read` gives an entry's rows as Arrow record batches of `SCHEMA` (for Spark: `DDL`).
* `acknowledge` reports what a consumer has read; retention only ever removes what all consumers have read.
"""

from sidecar.zone.acks import acknowledge, acknowledged
from sidecar.zone.data import read
from sidecar.zone.entry import Cover, Entry, PartRows
from sidecar.zone.schema import DDL, SCHEMA
from sidecar.zone.tail import Tail

__all__ = ["DDL", "SCHEMA", "Cover", "Entry", "PartRows", "Tail", "acknowledge", "acknowledged", "read"]
