"""The adapters of our drafters, named in `decoders.ADAPTERS`."""
