"""Endpoints of vLLM, SGLang and TensorRT-LLM beside OpenAI's."""
