"""Telling people: an incident becomes one message per notifier, edited as the incident lives.

In: incidents, published after every change. Out: messages, queued in the journal and delivered in the
background. Never: waiting for a receiver inside the loop that repairs, a lost message, the same message
twice.
"""

from agent.notify.build import build_notifiers
from agent.notify.dispatcher import Dispatcher
from agent.notify.notifier import Notifier, NotifierStatus
from agent.notify.slack import SlackBot, SlackWebhook

__all__ = ["Dispatcher", "Notifier", "NotifierStatus", "SlackBot", "SlackWebhook", "build_notifiers"]
