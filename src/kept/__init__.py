"""Kept."""
