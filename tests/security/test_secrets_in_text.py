"""Secrets and people's words, in every form that logs and command lines give them, do not leave."""

from __future__ import annotations

import subprocess
import time

import pytest

from agent.diagnose.redact import redact as redact_evidence
from agent.launch import redact, redact_argv
from agent.launch.procfs import command_line

SECRET = "hunter2secretvalue"

NAMED = [
    f"--api-key {SECRET}",
    f"vllm serve m --api-key first1 {SECRET} --port 1",
    f'bash -c "vllm serve m --api-key first1 {SECRET}"',
    f"['serve', '--api-key', 'first1', '{SECRET}', '--port', '1']",
    f"--hf_token {SECRET}",
    f"--api-k {SECRET}",
    f"vllm: error: unrecognized arguments: --apikey {SECRET} --hf-tok {SECRET} --my-auth-token {SECRET}",
    f"--ssl-keyfile-password {SECRET}",
    f"'api_key': ['first1', '{SECRET}'], 'port': 1",
    f'"api_key": ["first1", "{SECRET}"]',
    f'{{\\"api_key\\": \\"{SECRET}\\"}}',
    f"AWS_SECRET_ACCESS_KEY={SECRET}",
    f"aws_secret_access_key = {SECRET}",
    f"AWS_SESSION_TOKEN={SECRET}",
    f"export HF_TOKEN='{SECRET}'",
    f"DB_PWD={SECRET}",
    f"password='two words {SECRET}'",
    "password: 1234567890123",
    f"client_secret={SECRET}",
    f"private_key: {SECRET}",
    f"AccountKey={SECRET};EndpointSuffix=x",
    f"Authorization: Token {SECRET}",
    f"authorization: {SECRET}",
    f"(b'authorization', b'Bearer {SECRET}')",
    f"x-api-key: {SECRET}",
    f"Cookie: session={SECRET}; other=1",
    f"redis://:{SECRET}@host/0",
    f"https://{SECRET}@host/x",
    f"http://user:p@{SECRET}@host/x",
    f"https://host/x?X-Amz-Signature={SECRET}&a=1",
    f"https://host/x?sv=1&sig={SECRET}",
    f"https://hooks.slack.com/services/T000/B000/{SECRET}",
    f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
]
ISSUED = [
    f"xapp-1-A0-{SECRET}",
    f"xoxe.xoxp-1-{SECRET}",
    f"github_pat_{SECRET}",
    f"glpat-{SECRET}",
    f"nvapi-{SECRET}",
    "ASIAABCDEFGHIJKLMNOP",
    "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "hf_abcdefghijklmnopqrst",
]


@pytest.mark.parametrize("text", NAMED)
def test_a_value_that_its_name_makes_a_secret_is_masked_whole(text: str) -> None:
    for shown in (redact(text), redact_evidence(text)):
        assert SECRET not in shown and "1234567890123" not in shown
        assert "***" in shown or "[redacted]" in shown


@pytest.mark.parametrize("secret", ISSUED)
@pytest.mark.parametrize("frame", ["{}", "found {} in the log", "'{}'", "a={}&b=1"])
def test_a_secret_of_an_issuers_form_is_masked_without_a_name(secret: str, frame: str) -> None:
    text = frame.format(secret)
    assert secret not in redact(text) and secret not in redact_evidence(text)


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=512, num_tokens: 1000000, token_budget=8192",
        "eos_token='</s>', pad_token: '<pad>', api_key=None, 'hf_token': None",
        "hf_config and hf_overrides are read from http://127.0.0.1:8000/v1/models",
        "Key error: 'layers.0.weight'; key='value' of the KV cache",
        "vllm serve M --api-server-count 2 --tokenizer T --tokenizer-mode auto --max-num-batched-tokens 512",
        "error: {'message': 'The model `m` does not exist.', 'code': 404}",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 220.00 MiB",
        "ptxas fatal   : Value 'sm_103a' is not defined for option 'gpu-name'",
    ],
)
def test_what_a_diagnosis_needs_stays(text: str) -> None:
    assert redact(text) == text and redact_evidence(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "Received request cmpl-1: prompt: 'my diary', params: SamplingParams(n=1)",
        'Request chatcmpl-2 details: prompt: "my diary", prompt_token_ids: None',
        "prompt: my diary",
        "PROMPT: 'my diary'",
        "prompt: b'my diary'",
        "prompt=TextPrompt('my diary')",
        "prompts=['my diary']",
        "system_prompt='my diary'",
        "Generated response chatcmpl-1 (streaming complete): output: 'my diary', output_token_ids: [1]",
        "[type=missing, input_value={'role': 'user', 'content': 'my diary'}, input_type=dict]",
        "input_value='my diary', input_type=str",
        '{"content": "my diary"}',
        '{\\"content\\": \\"my diary\\"}',
        "reasoning_content='my diary'",
        '{"input": "my diary"}',
        '{"text": "my diary"}',
        "{'query': 'my diary'}",
    ],
)
def test_what_people_wrote_and_what_the_model_answered_is_cut_off(text: str) -> None:
    assert "my diary" not in redact_evidence(text) and "[redacted]" in redact_evidence(text)


@pytest.mark.parametrize("unit", ["token=[", "'api_key': ['a',", "://a:b", "--api-key 'x', ", "a-", "\\\\'", "prompt_"])
def test_masking_stays_quick_on_hostile_text(unit: str) -> None:
    begin = time.process_time()
    redact(unit * (64 * 1024 // len(unit)))
    redact_evidence(unit * (64 * 1024 // len(unit)))
    assert time.process_time() - begin < 2.0


def test_a_command_line_shows_none_of_several_keys() -> None:
    shown = redact_argv(
        ["env", f"HF_TOKEN={SECRET}", "vllm", "serve", "--api-k", SECRET, SECRET, "--api-key=" + SECRET]
    )
    assert SECRET not in " ".join(shown)


def test_a_process_list_shows_none_of_several_keys() -> None:
    with subprocess.Popen(["python3", "-c", "import time; time.sleep(30)", "--api-key", "first1", SECRET]) as process:
        try:
            for _ in range(100):
                shown = command_line(process.pid)
                if "--api-key" in shown:
                    break
                time.sleep(0.05)
        finally:
            process.kill()
    assert "--api-key *** ***" in shown and SECRET not in shown
