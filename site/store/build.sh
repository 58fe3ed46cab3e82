#!/usr/bin/env bash
# Compiles the store with the Java libraries of Debian packages. `build.sh OUT` puts the classes there; `build.sh OUT test`
# compiles and runs its tests, too. Prints the class path.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(realpath -m "$1")
jars=/usr/share/java
path=
for jar in jetty9-server jetty9-servlet jetty9-security jetty9-http jetty9-io jetty9-util jetty9-util-ajax servlet-api HikariCP \
    mariadb-java-client postgresql slf4j-api slf4j-nop tomcat9-catalina tomcat9-coyote tomcat9-util tomcat9-util-scan tomcat9-juli \
    tomcat9-api tomcat9-jni tomcat9-annotations-api tomcat9-jaspic-api; do
    [ -e "$jars/$jar.jar" ] || { echo "build.sh: there is no $jars/$jar.jar; ci/packages.sh site installs it" >&2; exit 1; }
    path+=:$jars/$jar.jar
done
path=$out$path
if [ ! -e "$out/.built" ] || [ -n "$(find "$here/java" "$here/test" -newer "$out/.built" -name '*.java' -print -quit)" ]; then
    mkdir -p "$out"
    mapfile -t sources < <(find "$here/java" "$here/test" -name '*.java')
    javac -Xlint:all,-processing,-path,-serial -Werror -d "$out" -cp "$path" "${sources[@]}" >&2
    touch "$out/.built"
fi
if [ "${2:-}" = test ]; then java -ea -cp "$path" store.Tests >&2; fi
echo "$path"
