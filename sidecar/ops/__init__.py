"""Interfaces for operators: metrics, health, status, log."""
