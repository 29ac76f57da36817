"""What a model says of nodes it may not know: calibrated probabilities, rejection, prediction sets, new classes."""
