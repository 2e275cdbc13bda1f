#pragma once

#include <polybus/client.hpp>
