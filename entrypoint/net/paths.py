"""Paths of the control port that both sides know. This module imports nothing."""

CERTIFICATE = "/v1/certificate"
"""Answers everyone with what proves that the head knows the run's keys."""
