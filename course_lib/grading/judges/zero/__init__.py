"""Chapter 6: everybody holds a part. shards.py: bytes, and steps on a piece; hooks.py: what is whole only in use."""
