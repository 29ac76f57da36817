"""A model at work: predictions, HTTP server, ONNX."""
