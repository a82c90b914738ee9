"""The real model on this machine: it is started, answers, and is ended, for real.

On a platform without the wheels, the tests assert that the reason is given, and that it names the way out.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import openai
import pytest
import pytest_asyncio
from support.record import TOOL_CALL, TOOL_TEMPLATE

from tailrace.server.localmodel import MODEL, LocalModel, available
from tailrace.wrappers.errors import ConfigurationError, UpstreamError, UpstreamFault

MISSING = available()


async def answer(local: LocalModel, prompt: str, **options: Any) -> list[openai.types.chat.ChatCompletionChunk]:
    async with openai.AsyncOpenAI(base_url=local.base_url, api_key="none") as client:
        stream = await client.chat.completions.create(
            model=local.model,
            messages=[{"role": "user", "content": prompt}],
            stream=True,
            stream_options={"include_usage": True},
            temperature=0,
            **options,
        )
        return [chunk async for chunk in stream]
