"""The one thing pyproject.toml cannot say: assets/ of a clone is flarechat/assets in a wheel."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["flarechat*"]), "flarechat.assets"],
    package_dir={"flarechat.assets": "assets"},
)
