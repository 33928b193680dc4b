"""How large models are trained on many devices: one module a chapter, every mechanism run on real ranks."""
