"""The journal: what happened, what was done and what people still have to be told, in one SQLite file.

In: incidents, actions, events, claims and deliveries. Out: the same, after any restart of the agent.
Never: a crash of the watcher because of a full disk or a broken file (the journal then works from memory,
says so and retries), and never a second watcher on the same folder.
"""

from agent.journal.ids import new_id
from agent.journal.journal import Journal
from agent.journal.records import EXPORT_VERSION, Delivery, Event, ExportLine
from agent.journal.schema import SCHEMA_VERSION

__all__ = ["EXPORT_VERSION", "SCHEMA_VERSION", "Delivery", "Event", "ExportLine", "Journal", "new_id"]
