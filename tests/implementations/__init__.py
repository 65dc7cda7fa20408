"""Tests of implementations/ as a user sees them: values, gradients, reasons."""
