"""The launcher's own fixtures serve here too: a factory of launchers, and a command that takes flags."""

from tests.launch.conftest import launch, vllm_like

__all__ = ["launch", "vllm_like"]
