#include <cstring>

#include "base/wire.h"
#include "rewrite/fields.h"
#include "rewrite/request.h"
#include "rewrite/spec.h"

namespace arlo::gateway {
namespace {

std::size_t shape_size(const InputSpec& spec, std::size_t rows, std::size_t tokens) {
  if (spec.role != Role::kTensor) return wire::varint_size(rows) + wire::varint_size(tokens);
  std::size_t size = wire::varint_size(rows);
  for (const auto dim : spec.dims) size += wire::varint_size(dim < 0 ? tokens : static_cast<std::uint64_t>(dim));
  return size;
}

}  // namespace

WorkerRequest::WorkerRequest(std::span<const Row> rows, const RuntimeInfo& runtime, std::int32_t tokens)
    : rows_(rows), runtime_(runtime), tokens_(static_cast<std::size_t>(tokens)) {
  for (const Row& row : rows) outputs_ |= row.outputs;
}

// Returns the id of a single row's request; a batch has none.
std::string_view WorkerRequest::id() const { return rows_.size() == 1 ? first().id_ : std::string_view{}; }

std::size_t WorkerRequest::size() const {
  const ModelSpec& model = *first().model_;
  std::size_t size = wire::field_size(runtime_.name.size()) + first().forwarded_size_;
  if (!id().empty()) size += wire::field_size(id().size());
  for (const auto& spec : model.inputs) {
    size += wire::field_size(wire::field_size(spec.name.size()) + wire::field_size(spec.datatype.size()) +
                             wire::field_size(shape_size(spec, rows_.size(), tokens_)));
    size += wire::field_size(tensor_size(static_cast<std::size_t>(&spec - model.inputs.data())));
  }
  if (outputs_ == kAllOutputs) return size;
  for (std::size_t i = 0; i < model.outputs.size(); ++i) {
    if ((outputs_ >> i & 1) != 0) size += wire::field_size(wire::field_size(model.outputs[i].name.size()));
  }
  return size;
}

std::size_t WorkerRequest::tensor_size(std::size_t input) const {
  const auto& spec = first().model_->inputs[input];
  if (spec.item != 0) return rows_.size() * spec.elements(tokens_) * spec.item;
  std::size_t size = 0;
  for (const Row& each : rows_) size += sizeof(std::uint32_t) + each.request->cell(each.row, input).size();
  return size;
}

void WorkerRequest::write(char* out) const {
  const ModelSpec& model = *first().model_;
  wire::Writer writer(out);
  writer.bytes(kName, runtime_.name);
  if (!id().empty()) writer.bytes(kId, id());
  for (const auto entry : first().forwarded_) writer.bytes(kParameters, entry);
  for (const auto& spec : model.inputs) {
    const std::size_t shape = shape_size(spec, rows_.size(), tokens_);
    writer.header(
        kInputs, wire::field_size(spec.name.size()) + wire::field_size(spec.datatype.size()) + wire::field_size(shape));
    writer.bytes(kTensorName, spec.name);
    writer.bytes(kDatatype, spec.datatype);
    writer.header(kShape, shape);
    writer.varint(rows_.size());
    if (spec.role != Role::kTensor) writer.varint(tokens_);
    for (const auto dim : spec.dims) writer.varint(dim < 0 ? tokens_ : static_cast<std::uint64_t>(dim));
  }
  for (std::size_t i = 0; outputs_ != kAllOutputs && i < model.outputs.size(); ++i) {
    if ((outputs_ >> i & 1) == 0) continue;
    writer.header(kOutputs, wire::field_size(model.outputs[i].name.size()));
    writer.bytes(1, model.outputs[i].name);
  }
  for (std::size_t i = 0; i < model.inputs.size(); ++i) {
    const std::size_t bytes = tensor_size(i);
    writer.header(kRaw, bytes);
    write_tensor(i, writer.at());
    writer = wire::Writer(writer.at() + bytes);
  }
}

void WorkerRequest::write_tensor(std::size_t input, char* out) const {
  const auto& spec = first().model_->inputs[input];
  const std::size_t elements = spec.elements(tokens_);
  for (const Row& each : rows_) {
    const auto cell = each.request->cell(each.row, input);
    if (spec.item == 0) {
      out = put_element(cell, out);
      continue;
    }
    std::size_t length = cell.size() / spec.item;
    if (spec.role != Role::kTensor) {
      length =
          each.tokens != nullptr ? each.tokens->size() : static_cast<std::size_t>(each.request->lengths_[each.row]);
    }
    if (cell.data() != nullptr && each.tokens != nullptr && spec.role != Role::kTensor) {
      for (std::size_t i = 0; i < length; ++i) {
        std::memcpy(out + i * spec.item, cell.data() + (*each.tokens)[i] * spec.item, spec.item);
      }
      fill_items(out + length * spec.item, elements - length, spec.item, spec.pad_value);
    } else {
      write_row(spec, cell.data(), length, elements, out);
    }
    out += elements * spec.item;
  }
}

}  // namespace arlo::gateway
