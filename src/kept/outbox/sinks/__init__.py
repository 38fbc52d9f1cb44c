"""One file for each kind of broker. Each needs its own extra: ``pip install "kept[nats]"`` and so on."""
