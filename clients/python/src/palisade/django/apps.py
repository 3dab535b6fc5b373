"""The app, for INSTALLED_APPS."""

from django.apps import AppConfig


class PalisadeConfig(AppConfig):  # type: ignore[misc]
    name = "palisade.django"
    label = "palisade"
