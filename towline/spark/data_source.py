"""The data source that Spark calls for `format("towline")`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from towline.errors import BadRequest
from towline.spark.arrow.from_frames import NEVER_NULL, chosen
from towline.spark.arrow.to_frames import check_columns
from towline.spark.batch_reader import BatchReader, FilteringReader
from towline.spark.options import ReadOptions, WriteOptions
from towline.spark.range_reader import SCHEMAS
from towline.spark.short_errors import short_errors
from towline.spark.stream_reader import StreamReader
from towline.spark.writer import BatchWriter, StreamWriter

__all__ = ["TowlineSource", "columns_of"]


class TowlineSource(DataSource):
    """Messages of a broker, or of a store's folder."""

    @classmethod
    def name(cls) -> str:
        return "towline"

    def schema(self) -> StructType:
        with short_errors():
            options = ReadOptions.parse(self.options)
            kind = options.selection.kind
            columns = from_arrow_schema(chosen(SCHEMAS[kind], options.columns or None))
        never_null = NEVER_NULL if kind == "messages" else ()
        return StructType([StructField(one.name, one.dataType, one.name not in never_null) for one in columns])

    def reader(self, schema: StructType) -> DataSourceReader:
        with short_errors():
            options = ReadOptions.parse(self.options, batch=True)
            columns = columns_of(schema, options)
        return (FilteringReader if options.push_filters else BatchReader)(options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        with short_errors():
            options = ReadOptions.parse(self.options, streaming=True)
            return StreamReader(options, columns_of(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        with short_errors():
            if overwrite:
                raise BadRequest("messages are added to a topic, they never replace others: use mode('append')")
            options = WriteOptions.parse(self.options)
            check_columns(to_arrow_schema(schema, timezone="UTC"), options.topic)
            return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        with short_errors():
            if overwrite:
                raise BadRequest("messages are added to a topic, they never replace others: use outputMode('append')")
            options = WriteOptions.parse(self.options)
            check_columns(to_arrow_schema(schema, timezone="UTC"), options.topic)
            return StreamWriter(options)


def columns_of(schema: StructType, options: ReadOptions) -> pa.Schema:
    """The requested columns as an Arrow schema for Spark; an error names the first that does not exist."""
    kind = options.selection.kind
    full = SCHEMAS[kind]
    wanted: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    if options.columns and list(options.columns) != wanted.names:
        raise BadRequest("columns are given by the option columns and, others, by a schema: give one of both")
    for field in wanted:
        if field.name not in full.names:
            raise BadRequest(f"schema: there is no column {field.name!r}; there are {', '.join(full.names)}")
        if field.type not in _types(full.field(field.name)):
            given = from_arrow_schema(pa.schema([field])).simpleString()
            right = from_arrow_schema(pa.schema([full.field(field.name)])).simpleString()
            raise BadRequest(f"schema: a column is {given[7:-1]}, but must be {right[7:-1]}")
        if not field.nullable and (kind != "messages" or field.name not in NEVER_NULL):
            # Spark would not check it, and take it for an empty one.
            raise BadRequest(f"schema: the column {field.name} may be null: leave NOT NULL out")
    return wanted


def _types(field: pa.Field) -> tuple[Any, ...]:
    return (pa.binary(), pa.string()) if field.name == "body" else (field.type,)
