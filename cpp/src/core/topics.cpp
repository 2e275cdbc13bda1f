#include "topics.hpp"

#include "../wire/utf8.hpp"

namespace polybus::core {

bool matches(std::string_view filter, std::string_view topic) {
    if (topic.starts_with('$') && (filter.starts_with('#') || filter.starts_with('+'))) return false;
    for (;;) {
        if (filter == "#") return true;
        const std::size_t filter_end = filter.find('/');
        const std::size_t topic_end = topic.find('/');
        const std::string_view level = filter.substr(0, filter_end);
        if (level != "+" && level != topic.substr(0, topic_end)) return false;
        const bool is_filter_done = filter_end == std::string_view::npos;
        const bool is_topic_done = topic_end == std::string_view::npos;
        if (is_filter_done || is_topic_done) {
            if (is_filter_done && is_topic_done) return true;
            // "a/#" stands for "a" as well
            return is_topic_done && filter.substr(filter_end + 1) == "#";
        }
        filter.remove_prefix(filter_end + 1);
        topic.remove_prefix(topic_end + 1);
    }
}

const char* find_topic_fault(std::string_view topic) {
    if (topic.empty()) return "a topic has at least one character";
    if (topic.find_first_of("#+") != std::string_view::npos) return "a topic has no wildcards (# or +)";
    if (topic.find('\0') != std::string_view::npos) return "a topic does not contain U+0000";
    if (wire::find_utf8_fault(topic) != std::string_view::npos) return "a topic is UTF-8";
    return nullptr;
}

} // namespace polybus::core
