"""Files: typed values as JSON and tensors as safetensors, written atomically, read without executing anything."""
