"""What a run is: frozen dataclasses of flags; standard library only."""
