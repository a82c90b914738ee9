"""The protocols of the server. All protocols except A2A translate the events of a task with `EventTranslator`."""
