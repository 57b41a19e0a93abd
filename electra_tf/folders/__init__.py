"""The only reader and writer of what lies in a run's folder."""
