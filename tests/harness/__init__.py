"""Tests of what the tests themselves stand on."""
