"""What a run reached, on one page of HTML that needs nothing but itself."""

from keras_transformer.report.page import write_report

__all__ = ["write_report"]
