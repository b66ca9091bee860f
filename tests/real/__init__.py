"""Tests on the real vLLM: `vllm` is the short form, `vllm_matrix` the whole list (make test-real)."""
