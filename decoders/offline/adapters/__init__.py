"""One adapter a drafter of ours, named in `decoders.ADAPTERS`."""
