"""By lying here, this file makes ``asking`` importable."""
