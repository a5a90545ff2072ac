"""Rewriting of models into cheaper forms that give the same bits."""
