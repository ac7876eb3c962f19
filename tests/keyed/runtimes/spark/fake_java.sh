# Answers as a Java runtime does. Before these lines are its home, version, specification, and whether it has the
# vector module and shows its settings.
show=
for argument do
  case $argument in
    --add-modules=*) if [ $vector = no ]; then
      echo "Error occurred during initialization of boot layer" >&2
      echo "java.lang.module.FindException: Module jdk.incubator.vector not found" >&2; exit 1; fi ;;
    -XshowSettings:properties) show=yes ;;
    -version) ;;
    *) printf '[%s]' "$argument"; rest=yes ;;
  esac
done
if [ -n "$rest" ]; then echo; exit 0; fi
{
echo "Picked up JAVA_TOOL_OPTIONS: -Dversion=99"
if [ -n "$show" ] && [ $settings = yes ]; then
  echo "Property settings:"
  echo "    java.home = $home"
  echo "    java.specification.version = $specification"
  echo "    java.version = $version"
fi
echo "openjdk version \"$version\" 2025-04-15"
echo "OpenJDK Runtime Environment (build $version+6)"
} >&2
