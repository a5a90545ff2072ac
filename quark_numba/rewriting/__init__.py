"""Rewriting of models into fewer, cheaper nodes that give the same bits."""
