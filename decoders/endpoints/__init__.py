"""Arms that are servers: any OpenAI-compatible endpoint, asked over HTTP and streamed."""
