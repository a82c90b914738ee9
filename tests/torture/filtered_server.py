"""A server with a filter of `support.forbidden_texts`, for uvicorn: ``--factory torture.filtered_server:create``.

It writes its log at the level DEBUG, and its spans, to its output.
"""

import logging
import os

from fastapi import FastAPI
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from support.forbidden_texts import KINDS
from tailrace.server import Settings, create_app


def create() -> FastAPI:
    """Create the application with the filter that the variable ``FILTER`` names."""
    logging.basicConfig(level=logging.DEBUG)
    spans = TracerProvider()
    spans.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
    settings = Settings()
    filters = KINDS[os.environ["FILTER"]].create(str(settings.base_url))
    return create_app(settings, filters=filters, tracer_provider=spans)
