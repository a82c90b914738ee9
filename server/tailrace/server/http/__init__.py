"""HTTP for every protocol: request checks and bodies, connections, SSE responses, CORS, caching, static pages."""
