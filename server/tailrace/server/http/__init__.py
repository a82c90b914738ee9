"""HTTP code that all protocols share: request checks, bodies, connections, SSE responses, caching, static pages."""
