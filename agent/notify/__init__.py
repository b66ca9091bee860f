"""Telling people: an incident or an alert becomes one message per notifier, edited as it lives, and is pushed to
Alertmanager while it lasts.

In: incidents and alerts, published after every change. Out: messages, queued in the journal and delivered in the
background. Never: waiting for a receiver inside the loop that repairs, a lost message, the same message
twice.
"""

from agent.notify.alertmanager import Alertmanager
from agent.notify.build import build_notifiers, build_pushers
from agent.notify.dispatcher import Dispatcher
from agent.notify.notifier import Notifier, NotifierStatus, Phase, Pusher, Subject
from agent.notify.slack import SlackBot, SlackWebhook
from agent.notify.webhook import Webhook

__all__ = [
    "Alertmanager",
    "Dispatcher",
    "Notifier",
    "NotifierStatus",
    "Phase",
    "Pusher",
    "SlackBot",
    "SlackWebhook",
    "Subject",
    "Webhook",
    "build_notifiers",
    "build_pushers",
]
