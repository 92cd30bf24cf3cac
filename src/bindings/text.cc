// The gateway's tokenizer in Python, for tests that compare it with the `tokenizers` package.
#include "text/tokenizer.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace arlo::text {
namespace {

void check(const MaybeFault& fault) {
  if (fault) throw std::invalid_argument(fault->message);
}

}  // namespace

void bind(nb::module_& m) {
  nb::class_<Tokenizer>(m, "Tokenizer", "The gateway's tokenizer: WordPiece, equal to the `tokenizers` package.")
      .def(
          "__init__",
          [](Tokenizer* made, const std::string& json) {
            Tokenizer read;
            check(Tokenizer::read(json, read));
            new (made) Tokenizer(std::move(read));
          },
          "json"_a, "`json`: what stands in a tokenizer.json. Raises ValueError for one that is not known here.")
      .def(
          "encode",
          [](const Tokenizer& t, const std::string& text, const std::optional<std::string>& second,
             std::size_t most_tokens, bool keep_end, bool add_special) {
            Encoding made;
            check(t.encode(text, second, {most_tokens, keep_end, add_special}, made));
            std::vector<int> types(made.type_ids.begin(), made.type_ids.end());
            return std::tuple(std::move(made.ids), std::move(types), made.cut);
          },
          "text"_a, "second"_a = nb::none(), "most_tokens"_a = 0, "keep_end"_a = false, "add_special"_a = true,
          "Ids, type ids, and whether there was more text than `most_tokens` (0: any number).")
      .def(
          "places",
          [](const Tokenizer& t, const std::string& text) {
            Encoding made;
            check(t.encode(text, {}, {.with_places = true}, made));
            std::vector<std::pair<std::uint32_t, std::uint32_t>> places;
            for (const auto& place : made.places) places.emplace_back(place.start, place.stop);
            return places;
          },
          "text"_a, "Of each token of a text the characters that it stands for, from and to; 0 and 0: it was added.")
      .def("special_tokens", &Tokenizer::special_tokens, "pair"_a, "Special tokens that a text or a pair gets.")
      .def_prop_ro("vocabulary_size", &Tokenizer::vocabulary_size);
}

}  // namespace arlo::text
