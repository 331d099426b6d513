"""One file per stage: reads artifacts, calls the layers below, writes artifacts."""
